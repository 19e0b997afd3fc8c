"""The one exception for what a user can mend."""


class InputError(ValueError):
    """Bad input: the message is one line that says what is wrong and what to do. The command line exits with 2."""
