-- 9007199254740992 is 2**53: up to there every reader of the file, JSON included, takes a whole number for what it is.
-- context and verdict: the codes of drafts.py (verdict 2: ungraded). length 16: DIGEST_BYTES of codec.py.
-- keys: floor, usage.*
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL CHECK (value BETWEEN 0 AND 9007199254740992)) STRICT, WITHOUT ROWID;
CREATE TABLE steps (
    step INTEGER PRIMARY KEY CHECK (step >= 0), epoch INTEGER NOT NULL CHECK (epoch BETWEEN 0 AND 9007199254740992),
    num_rollouts INTEGER NOT NULL CHECK (num_rollouts BETWEEN 0 AND 9007199254740992),  -- all that the step sampled
    num_ungraded INTEGER NOT NULL CHECK (num_ungraded BETWEEN 0 AND 9007199254740992),
    num_rows INTEGER NOT NULL CHECK (num_rows BETWEEN 0 AND 9007199254740992),      -- rows written
    num_unkept INTEGER NOT NULL CHECK (num_unkept BETWEEN 0 AND 9007199254740992),    -- rollouts that left at once: counted, no row written
    bytes INTEGER NOT NULL CHECK (bytes BETWEEN 0 AND 9007199254740992),         -- of the rows it brought, those included that found no room
    -- The largest ids that were given out by then. Ids are never given out twice, so everything later is larger.
    last_problem INTEGER NOT NULL CHECK (last_problem BETWEEN 0 AND 9007199254740992), last_prompt INTEGER NOT NULL CHECK (last_prompt BETWEEN 0 AND 9007199254740992), last_response INTEGER NOT NULL CHECK (last_response BETWEEN 0 AND 9007199254740992), last_rollout INTEGER NOT NULL CHECK (last_rollout BETWEEN 0 AND 9007199254740992),
    committed_at REAL NOT NULL CHECK (abs(committed_at) < 1e308),     -- seconds since 1970, for people
    CHECK (num_rows + num_ungraded + num_unkept <= num_rollouts)) STRICT;
CREATE TABLE problems (id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE) STRICT;
-- Everything ever committed, per problem, context and verdict. Never evicted.
CREATE TABLE counters (
    problem INTEGER NOT NULL REFERENCES problems, context INTEGER NOT NULL CHECK (context BETWEEN 0 AND 4), verdict INTEGER NOT NULL CHECK (verdict BETWEEN 0 AND 2), count INTEGER NOT NULL CHECK (count BETWEEN 1 AND 9007199254740992), reward_sum REAL NOT NULL CHECK (abs(reward_sum) < 1e308), CHECK (verdict < 2 OR reward_sum = 0), PRIMARY KEY (problem, context, verdict)) STRICT, WITHOUT ROWID;
-- What a counter was before `step` changed it; count 0: it did not exist.
CREATE TABLE counters_before (
    step INTEGER NOT NULL REFERENCES steps, problem INTEGER NOT NULL REFERENCES problems, context INTEGER NOT NULL CHECK (context BETWEEN 0 AND 4), verdict INTEGER NOT NULL CHECK (verdict BETWEEN 0 AND 2), count INTEGER NOT NULL CHECK (count BETWEEN 0 AND 9007199254740992), reward_sum REAL NOT NULL CHECK (abs(reward_sum) < 1e308), CHECK (verdict < 2 OR reward_sum = 0),
    PRIMARY KEY (step, problem, context, verdict)) STRICT, WITHOUT ROWID;
-- Rollouts that are in `counters` but have no row any more, by the step that let them go (-1: below the floor).
-- counters = rows + gone, always: that is what `verify` recounts.
CREATE TABLE gone (
    step INTEGER NOT NULL CHECK (step BETWEEN -1 AND 9007199254740992), problem INTEGER NOT NULL REFERENCES problems, context INTEGER NOT NULL CHECK (context BETWEEN 0 AND 4), verdict INTEGER NOT NULL CHECK (verdict BETWEEN 0 AND 2), count INTEGER NOT NULL CHECK (count BETWEEN 1 AND 9007199254740992), reward_sum REAL NOT NULL CHECK (abs(reward_sum) < 1e308), CHECK (verdict < 2 OR reward_sum = 0),
    PRIMARY KEY (step, problem, context, verdict)) STRICT, WITHOUT ROWID;
-- Graded continuations of a state, a prefix of a stored response, by the step that sampled them (-1: below the floor).
CREATE TABLE continuations (
    problem INTEGER NOT NULL REFERENCES problems, state BLOB NOT NULL CHECK (length(state) = 16),  -- of the prefix's token ids
    step INTEGER NOT NULL CHECK (step BETWEEN -1 AND 9007199254740992), tries INTEGER NOT NULL CHECK (tries BETWEEN 1 AND 9007199254740992), successes INTEGER NOT NULL CHECK (successes BETWEEN 0 AND 9007199254740992), CHECK (successes <= tries),
    PRIMARY KEY (problem, state, step)) STRICT, WITHOUT ROWID;
CREATE TABLE prompts (id INTEGER PRIMARY KEY, problem INTEGER NOT NULL REFERENCES problems, digest BLOB NOT NULL CHECK (length(digest) = 16), num_tokens INTEGER NOT NULL CHECK (num_tokens BETWEEN 0 AND 9007199254740992), ids BLOB NOT NULL, UNIQUE (problem, digest)) STRICT;
CREATE TABLE responses (id INTEGER PRIMARY KEY, problem INTEGER NOT NULL REFERENCES problems, digest BLOB NOT NULL CHECK (length(digest) = 16), num_tokens INTEGER NOT NULL CHECK (num_tokens BETWEEN 0 AND 9007199254740992), ids BLOB NOT NULL, UNIQUE (problem, digest)) STRICT;
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY, problem INTEGER NOT NULL REFERENCES problems, context INTEGER NOT NULL CHECK (context BETWEEN 0 AND 4), verdict INTEGER NOT NULL CHECK (verdict BETWEEN 0 AND 1),
    prompt INTEGER NOT NULL REFERENCES prompts, response INTEGER NOT NULL REFERENCES responses,
    num_tokens INTEGER NOT NULL CHECK (num_tokens BETWEEN 0 AND 9007199254740992),
    content BLOB NOT NULL CHECK (length(content) = 16),        -- of context, prompt, response, verdict: what makes a duplicate
    step INTEGER NOT NULL REFERENCES steps, epoch INTEGER NOT NULL CHECK (epoch BETWEEN 0 AND 9007199254740992), policy_step INTEGER NOT NULL CHECK (policy_step BETWEEN 0 AND 9007199254740992),
    reward REAL NOT NULL CHECK (abs(reward) < 1e308), truncated INTEGER NOT NULL CHECK (truncated BETWEEN 0 AND 1), finish_reason TEXT NOT NULL, reason TEXT NOT NULL,
    entropy_peak REAL, entropy_global REAL, entropy_source TEXT,
    samples INTEGER NOT NULL CHECK (samples BETWEEN 1 AND 9007199254740992),     -- rollouts of this step with this content, and the sum of their rewards
    reward_sum REAL NOT NULL CHECK (abs(reward_sum) < 1e308),
    copies INTEGER NOT NULL CHECK (copies BETWEEN 1 AND 9007199254740992),      -- samples of this and of the rows that it replaced
    bytes INTEGER NOT NULL CHECK (bytes BETWEEN 0 AND 9007199254740992),       -- towards the byte cap
    evicted_at INTEGER,
    origin TEXT NOT NULL,    -- of an imported row (context 3), else ''
    CHECK ((context = 3) = (origin != '')),
    CHECK (copies >= samples AND (samples > 1 OR reward = reward_sum)),
    CHECK ((entropy_peak IS NULL) + (entropy_global IS NULL) + (entropy_source IS NULL) IN (0, 3)),
    CHECK (entropy_peak IS NULL OR (abs(entropy_peak) < 1e308 AND abs(entropy_global) < 1e308)),
    CHECK (evicted_at IS NULL OR evicted_at BETWEEN step AND 9007199254740992)) STRICT;
-- Apart from `rollouts`, so that a walk over the rows reads no log-probs. NULL: an imported row's are not known.
-- given: JSON of the runs [begin, end] of tokens that were not sampled; NULL: there are none.
-- pieces: JSON of the runs [tokens, policy step] of a response that was paused; NULL: all are of rollouts.policy_step.
CREATE TABLE logprobs (rollout INTEGER PRIMARY KEY REFERENCES rollouts, data BLOB, given TEXT, pieces TEXT) STRICT;
-- The turns of the rows that are whole trajectories. Their responses, in a row, are the row's.
CREATE TABLE trajectories (
    rollout INTEGER PRIMARY KEY REFERENCES rollouts, digest BLOB NOT NULL CHECK (length(digest) = 16), turns BLOB NOT NULL) STRICT;
-- Experts of the rows whose engine returned them: one zstd frame (experts.py). width: bytes of a number.
CREATE TABLE experts (
    rollout INTEGER PRIMARY KEY REFERENCES rollouts, num_tokens INTEGER NOT NULL CHECK (num_tokens BETWEEN 1 AND 9007199254740992), layers INTEGER NOT NULL CHECK (layers BETWEEN 1 AND 65536), top_k INTEGER NOT NULL CHECK (top_k BETWEEN 1 AND 65536), width INTEGER NOT NULL CHECK (width BETWEEN 1 AND 2), data BLOB NOT NULL) STRICT;
-- Where a critic's values say that a failed response may be continued, since which step.
CREATE TABLE states (
    rollout INTEGER NOT NULL REFERENCES rollouts, num_tokens INTEGER NOT NULL CHECK (num_tokens BETWEEN 1 AND 9007199254740992),
    state BLOB NOT NULL CHECK (length(state) = 16),  -- as in `continuations`
    value REAL NOT NULL CHECK (abs(value) < 1e308), first_step INTEGER NOT NULL CHECK (first_step BETWEEN 0 AND 9007199254740992), PRIMARY KEY (rollout, num_tokens)) STRICT, WITHOUT ROWID;
CREATE INDEX rollouts_live ON rollouts (problem, verdict, context, policy_step, step, content)
    WHERE evicted_at IS NULL;
CREATE INDEX rollouts_evicted ON rollouts (evicted_at) WHERE evicted_at IS NOT NULL;
CREATE INDEX rollouts_response ON rollouts (response);
CREATE INDEX rollouts_prompt ON rollouts (prompt);
