"""What an operator looks at and decides."""
