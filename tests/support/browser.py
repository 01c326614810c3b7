# SPDX-License-Identifier: Apache-2.0
"""A real browser without a screen: Chromium, over the pipe of its DevTools protocol (https://chromedevtools.github.io/devtools-protocol/)."""
import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

import launch

DEADLINE = 60
FLAGS = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--hide-scrollbars', '--no-first-run',
         '--disable-background-networking', '--disable-component-update', '--disable-sync', '--force-color-profile=srgb', '--remote-debugging-pipe']


def find():
    """The browser's path; skips the test without one."""
    path = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
    if path is None:
        raise launch.Skip('no chromium here (apt-get install chromium)')
    return path


class Browser:
    """One page. `errors` has what the console shows as an error."""

    def __init__(self):
        path, self.number, self.data, self.errors, self.session = find(), 0, b'', [], None
        self.tmp = tempfile.TemporaryDirectory(prefix='cddp-browser.', ignore_cleanup_errors=True)
        commands, self.send_fd = os.pipe()
        self.receive_fd, answers = os.pipe()
        self.process = subprocess.Popen(['sh', '-c', f'exec "$@" 3<&{commands} 4>&{answers}', 'sh', path, *FLAGS, f'--user-data-dir={self.tmp.name}',
                                         'about:blank'], pass_fds=(commands, answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True, env={**os.environ, 'HOME': self.tmp.name})
        os.close(commands)
        os.close(answers)

    def __enter__(self):
        try:
            target = self.call('Target.createTarget', url='about:blank')['targetId']
            self.session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
            for domain in 'Page', 'Runtime', 'Log':
                self.call(domain + '.enable')
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *why):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.send_fd)
        os.close(self.receive_fd)
        self.tmp.cleanup()

    def receive(self, deadline):
        """The next message of the browser."""
        while b'\0' not in self.data:
            ready, _, _ = select.select([self.receive_fd], [], [], max(0, deadline - time.monotonic()))
            more = os.read(self.receive_fd, 1 << 20) if ready else b''
            assert more, 'the browser does not answer'
            self.data += more
        line, self.data = self.data.split(b'\0', 1)
        message = json.loads(line)
        what = message.get('method')
        if what == 'Runtime.exceptionThrown' or (what == 'Runtime.consoleAPICalled' and message['params']['type'] in ('error', 'assert')) or \
                (what == 'Log.entryAdded' and message['params']['entry']['level'] == 'error'):
            self.errors.append(message['params'])
        return message

    def call(self, method, **params):
        self.number += 1
        message = {'id': self.number, 'method': method, 'params': params}
        if self.session is not None:
            message['sessionId'] = self.session
        os.write(self.send_fd, json.dumps(message).encode() + b'\0')
        deadline = time.monotonic() + DEADLINE
        while True:
            answer = self.receive(deadline)
            if answer.get('id') == self.number:
                assert 'error' not in answer, (method, answer['error'])
                return answer['result']

    def show(self, width, height, dark=False, scripts=True):
        """The size of the window, and the colours that the user prefers."""
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call('Emulation.setEmulatedMedia', features=[{'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}])
        self.call('Emulation.setScriptExecutionDisabled', value=not scripts)

    def open(self, url):
        assert 'errorText' not in self.call('Page.navigate', url=url), url
        deadline = time.monotonic() + DEADLINE
        while self.receive(deadline).get('method') != 'Page.loadEventFired':
            pass

    def eval(self, expression):
        """The value of an expression in the page."""
        answer = self.call('Runtime.evaluate', expression=expression, returnByValue=True, awaitPromise=True)
        assert 'exceptionDetails' not in answer, (expression, answer['exceptionDetails'])
        return answer['result'].get('value')

    def count(self, selector):
        return self.eval(f'document.querySelectorAll({json.dumps(selector)}).length')

    def text(self, selector):
        """What a reader sees of the first such element; None: there is none."""
        return self.eval(f'document.querySelector({json.dumps(selector)})?.innerText')

    def overflow(self):
        """Pixels by which the page is wider than the window."""
        return self.eval('document.documentElement.scrollWidth - window.innerWidth')

    def screenshot(self, path):
        data = self.call('Page.captureScreenshot', format='png', captureBeyondViewport=False)['data']
        with open(path, 'wb') as out:
            out.write(base64.b64decode(data))
