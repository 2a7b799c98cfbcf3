"""A front desk: three tasks of one home, and its users."""
