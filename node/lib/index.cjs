'use strict';
const { devices, version } = require('./library.cjs');
const { ForedraftError } = require('./errors.cjs');
const { Engine } = require('./engine.cjs');
const { download } = require('./hub.cjs');
const { picture, sound } = require('./media.cjs');
const { Stream } = require('./stream.cjs');

module.exports = { download, Engine, ForedraftError, Stream, devices, picture, sound, version };
