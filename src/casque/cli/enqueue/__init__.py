"""`queuectl enqueue`: one job from its arguments, or many from stdin.

fast_args   The arguments of `enqueue`, read without Typer.
fields      What a person wrote, as a job or a refusal.
one         What `enqueue` does with one job, either way.
stdin       Many jobs from stdin.
typer_args  The same, read by Typer.
"""
