"""Signing in: sessions, the rights of routes, and how every room renders a page."""
