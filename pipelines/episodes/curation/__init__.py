"""Which prompts are worth learning from: decided before anybody is paid to judge their answers."""
