"""Demo products that run on Millrace from end to end."""
