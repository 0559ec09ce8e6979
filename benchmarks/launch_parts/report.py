def summary(runs): return {}
def report(s): pass
