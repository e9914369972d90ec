"""Access control for the broker and the name server, as a plug-in: `aclEnable=true`."""
