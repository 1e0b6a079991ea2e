"""What is wrong with somebody's code, with a name and a sentence."""


class Fault(Exception):
    """Code is wrong in a way that has a name.

    `diagnosis` is a short slug such as "wrong type"; `message` says what is wrong and what to try. Backticks
    in it mark code.
    """

    def __init__(self, diagnosis, message):
        super().__init__(diagnosis, message)
        self.diagnosis = diagnosis
        self.message = message

    def __str__(self):
        return f"{self.diagnosis}: {self.message}"
