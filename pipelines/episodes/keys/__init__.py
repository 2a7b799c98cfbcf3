"""Answers under names of their own: an app's join keys and its sessions, and the signals that are about them."""
