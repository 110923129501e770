"""The command line `evertally`; each command is one module, imported when it is called."""
