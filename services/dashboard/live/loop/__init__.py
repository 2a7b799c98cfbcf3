"""The Loop page: rates over time and how fresh each stage is."""
