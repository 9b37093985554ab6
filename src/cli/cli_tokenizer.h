/* The parts of imece tokenizer. */
#ifndef IM_CLI_TOKENIZER_H
#define IM_CLI_TOKENIZER_H

#include "cli/cli.h"

extern const im_cli_command im_cli_tokenizer_train_command;

#endif
