"""Messages to token ids: the chat template and the tokenizer of a base policy."""

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Of messages. They are fixed words, not free text, so they may complete a control string (`<|` + role + `|>`)."""
OWN_VARIABLES = (
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template",
)  # fmt: skip
"""Variables of chat templates that a request may not set."""
