"""Durable feedback beside other servers."""
