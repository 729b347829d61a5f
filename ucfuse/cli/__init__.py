"""The command line: `ucfuse` with its commands, and `mount.ucfuse`.

Each command is a module that parses its own arguments, prints, and returns the exit code: 0, 1 for
what could not be done, 2 for a command line that makes no sense (`mount.ucfuse`: mount(8)'s). Only
here are environment, arguments and the terminal read; what the core needs of them it gets in a
`MountConfig`.
"""
