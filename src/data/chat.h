/* chat: conversations as ids. Chat templates of the Hugging Face world are programs (Jinja) and are not run; three formats are built in.
 *
 *   ChatML    <|im_start|>ROLE\nTEXT<|im_end|>\n                                        SmolLM2, Qwen
 *   Llama 3   <|begin_of_text|> then <|start_header_id|>ROLE<|end_header_id|>\n\nTEXT<|eot_id|>     TEXT without white space around it
 *   plain     Role: TEXT\n, with the end-of-document token in place of \n behind an assistant's last turn; needs no special tokens: also for bytes
 *
 * What special tokens a text contains are its letters here: nobody can write a turn into a turn. The header of an assistant's turn is encoded by
 * itself, so that in training it is followed by what follows it in generation; all else is encoded as if it stood in one text.
 */
#ifndef IM_DATA_CHAT_H
#define IM_DATA_CHAT_H

#include "data/tokenizer.h"

typedef enum im_chat_format { IM_CHAT_AUTO, IM_CHAT_CHATML, IM_CHAT_LLAMA3, IM_CHAT_PLAIN } im_chat_format;

typedef struct im_chat_turn {
    const char *role; /* "system", "user", "assistant", or another name */
    const char *text;
    size_t n;     /* bytes of text */
    bool counted; /* an assistant's turn that a model is to learn */
} im_chat_turn;

typedef struct im_chat im_chat;
/* For one thread. tok NULL: bytes. AUTO: by the special tokens that the tokenizer has. A format whose tokens it lacks is refused by their names. */
im_status im_chat_create(im_context *ctx, const im_tok *tok, im_chat_format format, im_chat **out) IM_MUST_CHECK;
void im_chat_destroy(im_chat *c); /* NULL is allowed */
const char *im_chat_format_name(im_chat_format f);
im_chat_format im_chat_format_of(const im_chat *c); /* never AUTO */
int32_t im_chat_end(const im_chat *c);              /* the token that ends an assistant's turn; plain: that ends a document; -1: none */

/* Ids, and for each of them 1 where a model is to learn to say it. */
typedef struct im_chat_ids {
    im_tok_ids ids;
    unsigned char *counted;
    size_t cap;
} im_chat_ids;
void im_chat_ids_free(im_chat_ids *x);

/* Appends a conversation. open: with the header of an assistant's turn behind it, for a model to go on. */
im_status im_chat_turns(im_chat *c, const im_chat_turn *turn, size_t n, bool open, im_chat_ids *out) IM_MUST_CHECK;
/* Appends a prompt and its completion, as they are, and the end-of-document token; the completion and that token are counted. */
im_status im_chat_completion(im_chat *c, const char *prompt, size_t nprompt, const char *completion, size_t ncompletion,
                             im_chat_ids *out) IM_MUST_CHECK;

#endif
