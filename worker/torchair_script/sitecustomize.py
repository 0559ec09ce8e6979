"""Python imports this in processes that a script under ``warmrank run`` starts: they are redirected like it."""

from warmrank.worker.torchair_script import next_on_the_path, redirect

next_on_the_path("sitecustomize")
redirect()
