"""Whoever hangs a training of the tests up is named before it dies of it: a SIGHUP that
nobody in the test has sent says nothing by itself.
"""

import os
import signal
import threading


def name_the_sender():
    """Must be called by the main thread before others are started."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    threading.Thread(target=_wait, daemon=True).start()


def _wait():
    info = signal.sigwaitinfo({signal.SIGHUP})
    sender = f"process {info.si_pid}"
    try:
        with open(f"/proc/{info.si_pid}/cmdline", "rb") as f:
            sender += f" ({f.read().replace(bytes(1), b' ').decode(errors='replace').strip()})"
    except OSError:
        pass
    if info.si_code > 0:  # SI_KERNEL
        sender = "the kernel (the terminal is hung up)"
    os.write(2, f"\nSIGHUP was sent by {sender}, si_code {info.si_code}\n".encode())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    signal.pthread_kill(threading.get_ident(), signal.SIGHUP)
