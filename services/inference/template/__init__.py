"""Messages to token ids: the chat template and the tokenizer of a base policy."""
