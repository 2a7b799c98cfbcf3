"""Who may see the dashboard: sign-in, sessions, roles."""
