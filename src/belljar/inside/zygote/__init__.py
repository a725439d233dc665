"""The zygote: the warm process, with all imports done, from which guests are forked."""
