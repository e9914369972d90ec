"""Access: roles, logins, sessions, tokens, checks of every request, and the audit log."""
