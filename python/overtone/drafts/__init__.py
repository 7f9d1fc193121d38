"""Fitted drafts: guesses of the next code from the hidden row of the code before it, and from that code.

``fit`` makes them from frames, ``quality`` says what they are worth on others. The file that they are kept in belongs
to the compiled module, what is done with them to the executors; ``docs/fitted-drafts.md`` has the whole story.
"""
