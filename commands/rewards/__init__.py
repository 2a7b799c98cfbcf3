"""The commands about rewards: score, rescore, estimate, bursts, judge."""
