// A host of the old server in Node, as its documents describe it: see old_life.rs for what it prints. Arguments: target, draft.
import koffi from 'koffi';

const library = koffi.load(process.env.FOREDRAFT_LIB);
const free = library.func('void free_string(void *text)');
const owned = koffi.disposable('owned', 'str', (pointer) => free(pointer));
const init_async = library.func('void init_async(const char *command)');
const deinit = library.func('void deinit()');
const functions = {poll_system_status: library.func('poll_system_status', owned, [])};
for (const name of ['get_completion', 'async_completion_init', 'async_completion_poll', 'async_completion_cancel', 'speculative_completion',
    'lookup_cache']) {
    functions[name] = library.func(name, owned, ['str']);
}
const call = (name, argument) => {
    const text = argument === undefined ? null : JSON.stringify(argument);
    const answer = JSON.parse(name === 'poll_system_status' ? functions[name]() : functions[name](text));
    if (answer.success === false) throw new Error(JSON.stringify(answer));
    return answer;
};
const frame = () => new Promise((resolve) => setTimeout(resolve, 1));
// Python's notation, so that all hosts print the same.
const show = (value) => (value === true ? 'True' : value === false ? 'False' : Array.isArray(value) ? `[${value.join(', ')}]` : String(value));
const print = (...values) => console.log(values.map(show).join(' '));

// Polls as the old host did: without an id, until it is finished.
async function drain() {
    let text = '', last;
    for (;;) {
        const answer = call('async_completion_poll');
        for (const update of answer.completion_updates) {
            if (update.stop) last = update;
            else text += update.content;
        }
        if (answer.finished) return [text, last];
        await frame();
    }
}

const [target, draft] = process.argv.slice(2);
init_async(JSON.stringify({model: target, model_draft: draft, n_ctx: 512, n_threads: 1, seed: 42, n_keep: 3, log_level: 'debug'}));
while (call('poll_system_status').init_success === 0) await frame();
const status = call('poll_system_status');
print('loaded', status.init_success, status.model_alias === target, status.warnings.length);

const prompt = 'Once upon a time';
const stats = call('async_completion_init', {prompt: 'Tom had a hat. '.repeat(200), n_predict: 1}).prompt_stats;
print('prompt', stats.total_prompt_tokens > 700, stats.n_past, stats.truncated);
await drain();
const greedy = {prompt, n_predict: 12, temperature: 0, n_keep: 1000, logit_bias: [[9, false]]};
call('async_completion_init', greedy);
let [text, last] = await drain();
const settings = last.generation_settings;
print('streamed', JSON.stringify(text), JSON.stringify(last.content));
print('settings', settings.seed !== 42, settings.n_keep, JSON.stringify(settings.logit_bias) === '[[9,null]]', settings.stream);
const whole = call('get_completion', greedy);
print('waited', whole.content === text, whole.generation_settings.stream, whole.tokens_predicted);
const begun = text.slice(-3);
print('begun', JSON.stringify(call('get_completion', {...greedy, stop: [begun + '!!!']}).content));
const endless = {prompt, n_predict: -1, ignore_eos: true};
for (let i = 0; i < 3; i++) call('async_completion_init', endless);
print('cancelled', call('async_completion_cancel').cancelled, (await drain())[1].stop_type);
const speculated = call('speculative_completion', {...greedy, speculative: {type: 'draft', adaptive: false, n_max: 4}});
print('speculated', speculated.content === text, speculated.speculative.n_accepted > 0);
call('lookup_cache', {action: 'update', cache: 'dynamic', tokens: Array(4).fill([300, 301, 302]).flat(), n_new: 12});
print('drafted', call('lookup_cache', {action: 'draft', tokens: [300, 301], n_draft: 2}).draft);
call('async_completion_init', endless);
// Until the request has some text.
for (let slot; slot?.state !== 'generating' || slot.n_past <= 30; slot = call('poll_system_status').slots[0]) await frame();
deinit();
[text, last] = await drain();
print('unloaded', text !== '', last.stop_type, call('async_completion_poll').finished);
