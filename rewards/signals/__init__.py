"""What users did, as numbers: rewards, weights of votes, and what is expected of silent users."""
