#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The date of the man pages, on stdout, the same for each build of a version: SOURCE_DATE_EPOCH, or debian/changelog's newest."""
import datetime
import email.utils
import os
import pathlib
import re
import sys

CHANGELOG = pathlib.Path(__file__).parents[2] / 'debian/changelog'

if __name__ == '__main__':
    if os.environ.get('SOURCE_DATE_EPOCH'):
        date = datetime.datetime.fromtimestamp(int(os.environ['SOURCE_DATE_EPOCH']), datetime.timezone.utc)
    elif CHANGELOG.exists():
        newest = re.search(r'^ -- .*>  (.*)$', CHANGELOG.read_text(encoding='utf-8'), re.M).group(1)
        date = email.utils.parsedate_to_datetime(newest).astimezone(datetime.timezone.utc)
    else:  # a tree without the folder of the packages
        sys.exit()
    print(date.strftime('%Y-%m-%d'))
