"""Other forms of a conversation than OpenAI's chats: lowered to a `ChatRequest`, answered in the caller's shape."""
