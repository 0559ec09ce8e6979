"""Python imports this in the processes that a script under ``warmrank run`` starts."""

from warmrank.worker.torchair_script import next_on_the_path, redirect

next_on_the_path("sitecustomize")
redirect(is_child=True)
