"""What one tenant's slow schemas cost the structured output of others."""
