"""Users' answers leave as OpenTelemetry's GenAI spans."""
