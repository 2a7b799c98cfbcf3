"""Figures of the Loop page that are read less often: rates over time, and the delay of each stage."""
