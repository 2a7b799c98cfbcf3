"""What users did, as numbers."""
