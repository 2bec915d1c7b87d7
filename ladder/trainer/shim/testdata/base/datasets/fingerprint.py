def update_fingerprint(fingerprint, transform, transform_args):
    return repr((fingerprint, sorted(transform_args.items())))
