"""What a person can mend: the error that the command line prints without a traceback."""


class UserError(ValueError):
    """Wrong input. The message says what came, what was expected and what to do about it."""
