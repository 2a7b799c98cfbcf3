"""The cards of one machine as a pool: a policy moves them between engine replicas and ranks of the trainer."""
