"""The web pages where operators watch the loop and move versions, and where an app sees its own numbers."""
