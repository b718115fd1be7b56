import signal

# A shell lets what it starts in the background ignore Ctrl-C, which its children inherit; tests of Ctrl-C must hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
