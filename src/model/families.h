/* families: every family that is implemented, one line each: its table is im_family_NAME in NAME.c. Included where a list of
 * them is needed, with IM_FAMILY defined; so without a guard. docs/add-a-model.md shows how one is added. */
IM_FAMILY(bloom)
IM_FAMILY(gpt2)
IM_FAMILY(gpt_neox)
IM_FAMILY(llama)
IM_FAMILY(mistral)
IM_FAMILY(olmo2)
IM_FAMILY(phi3)
IM_FAMILY(qwen2)
IM_FAMILY(qwen3)
