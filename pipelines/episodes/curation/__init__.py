"""Which prompts are worth learning from: decided before judges are asked, which cost money."""
