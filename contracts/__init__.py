"""What two processes must agree on."""
