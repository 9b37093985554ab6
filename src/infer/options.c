#include "infer/infer.h"

#define AT(member) offsetof(im_infer_options, member)

const im_option im_infer_rows[IM_INFER_ROWS] = {
    {"model", IM_OPT_STRING, NULL, 0, 0, NULL, "Model: a Hugging Face directory, a checkpoint, or a run directory (its latest checkpoint).", "DIR",
     AT(model), 'm', false, "What"},
    {"prompt", IM_OPT_STRING, NULL, 0, 0, NULL,
     "Text to go on with; - reads standard input (one newline at its end is dropped), \"\" begins a document.", "TEXT", AT(prompt), 'p', false, NULL},
    {"ids", IM_OPT_STRING, NULL, 0, 0, NULL, "Ids to go on with, with commas or spaces between them: \"1,2,3\"; - reads standard input.", "IDS",
     AT(ids), 0, false, NULL},
    {"chat", IM_OPT_BOOL, "false", 0, 0, NULL,
     "The prompt is what a user says: it is put into the form that the model's special tokens are for (ChatML, Llama 3, or plain), as imece data "
     "build --chat writes it, and the answer ends.",
     NULL, AT(chat), 0, false, NULL},
    {"chat-format", IM_OPT_CHOICE, "auto", 0, 0, "auto|chatml|llama3|plain", "With --chat: this form, where the special tokens do not tell.", "FORM",
     AT(chat_format), 0, false, NULL},
    {"max-tokens", IM_OPT_INT, "-1", -1, 1 << 28, NULL, "Most new tokens (-1: 256, or fewer where the model's positions end).", "N", AT(max_tokens),
     'n', false, "How long"},
    {"stop", IM_OPT_LIST, NULL, 0, 0, NULL, "End before this text; may be given several times.", "TEXT", AT(stop), 0, false, NULL},
    {"temperature", IM_OPT_REAL, "0.8", 0, 1e6, NULL, "Logits are divided by this before an id is drawn; 0 always takes the likeliest id.", "T",
     AT(temperature), 0, false, "How ids are drawn"},
    {"top-k", IM_OPT_INT, "0", 0, 1 << 28, NULL, "Draw from the K likeliest ids (0: all).", "K", AT(top_k), 0, false, NULL},
    {"top-p", IM_OPT_REAL, "0.95", 0, 1, NULL, "Draw from the likeliest ids that together have this probability (1: all).", "P", AT(top_p), 0, false,
     NULL},
    {"seed", IM_OPT_INT, "1", 0, 9e18, NULL, "The same seed draws the same ids.", "N", AT(seed), 's', false, NULL},
    {"precision", IM_OPT_CHOICE, "fp32", 0, 0, "fp32|bf16", "Type of weights and activations; bf16 reads half the bytes.", "TYPE", AT(precision), 0,
     false, "Machine"},
    {"tp", IM_OPT_INT, "1", 1, 1024, NULL,
     "Tensor parallel: ranks that share out every layer. tp x pp ranks run as threads, or as mpirun starts them.", "N", AT(tp), 0, false, NULL},
    {"pp", IM_OPT_INT, "1", 1, 64, NULL, "Pipeline parallel: ranks that share out the blocks.", "N", AT(pp), 0, false, NULL},
    {"threads", IM_OPT_INT, "0", 0, 4096, NULL, "Threads of a rank (0: the usable cores, shared out over the ranks).", "N", AT(threads), 't', false,
     NULL},
    {"kernels", IM_OPT_CHOICE, "fast", 0, 0, "fast|plain", "Kernels: plain C versions are the reference, and slow.", "WHICH", AT(kernels), 0, false,
     NULL},
    {"deadline", IM_OPT_REAL, "600", 0.1, 1e6, NULL, "Seconds that a rank waits for the others in one operation; then all ranks stop.", "N",
     AT(deadline), 0, false, NULL},
    {"device", IM_OPT_CHOICE, "inline", 0, 0, "inline|deferred", "For tests: deferred runs everything later on other threads.", "WHICH", AT(device),
     0, true, NULL},
    {"json", IM_OPT_BOOL, "false", 0, 0, NULL, "Print one JSON object: prompt_ids, ids, logprobs, text, stop, stop_string, memory.", NULL, AT(json),
     0, false, "Output"},
    {"logprobs-of-prompt", IM_OPT_BOOL, "false", 0, 0, NULL,
     "With --json: prompt_logprobs too, of each id of the prompt given those before it (null for the first).", NULL, AT(prompt_logprobs), 0, false,
     NULL},
};

im_infer_config im_infer_config_of(const im_infer_options *o)
{
    return (im_infer_config){.prompt_logprobs = o->prompt_logprobs,
                             .temperature = o->temperature,
                             .top_p = o->top_p,
                             .top_k = o->top_k,
                             .seed = (uint64_t)o->seed,
                             .precision = o->precision ? IM_BF16 : IM_F32,
                             .threads = (int)o->threads,
                             .kernels = (im_kernels)o->kernels,
                             .deferred = o->device == 1,
                             .tp = (int)o->tp,
                             .pp = (int)o->pp,
                             .deadline = o->deadline};
}
