"""The demo in virtual time: its users, its base policy and the real learner, without servers."""
