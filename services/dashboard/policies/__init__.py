"""The Policies pages: versions, who serves what, and what each version learned from."""
