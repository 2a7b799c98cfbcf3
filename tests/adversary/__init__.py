"""What attacks, breaks and kills Millrace: each a command, run whole or by a test in small."""
