"""Both versions of a train answer recent prompts of users, unseen by them, before any user meets the new one."""
