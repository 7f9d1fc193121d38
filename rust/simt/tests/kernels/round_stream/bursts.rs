//! Bursts of a toy engine, against its step-by-step loop. The engine keeps a cache of what it fed, and what it draws
//! follows from all that the cache holds, as long as the lengths say: a length rolled back wrongly draws other codes.

use overtone_core::rounds::{DraftTree, MOST_VERIFY_ROWS, RoundCounters};
use overtone_cuda::round_stream::{NO_CODE, NO_LIMIT, Phase, RowStart, StreamError, StreamShape};
use overtone_simt::{LaunchError, Schedule};

use super::rows::{Buffers, Engine, Inputs, put};
use crate::host::Host;
use crate::host::fixtures::random::Random;

/// Layers with lengths.
const LAYERS: usize = 2;

/// How a toy engine behaves.
#[derive(Clone, Copy)]
struct Toy {
    seed: u64,
    code_count: usize,
    /// One draw in so many fails.
    fails: Option<u64>,
}

impl Toy {
    fn hash(&self, fed: &[i32]) -> u64 {
        fed.iter().fold(self.seed, |hash, &code| {
            (hash ^ u64::from(code.cast_unsigned())).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        })
    }

    /// What is drawn behind the codes fed so far; nothing sensible where the draw fails.
    fn draw(&self, fed: &[i32]) -> i32 {
        let hash = self.hash(fed);
        if self.fails.is_some_and(|one_in| hash.is_multiple_of(one_in)) {
            return [NO_CODE, i32::MIN, self.code_count as i32, i32::MAX][(hash >> 32 & 3) as usize];
        }
        ((hash >> 20) % self.code_count as u64) as i32
    }

    fn is_code(&self, value: i32) -> bool {
        (0..self.code_count as i32).contains(&value)
    }

    /// The hidden row that a draw is made from.
    fn hidden(&self, fed: &[i32]) -> f32 {
        (self.hash(fed) >> 40) as f32
    }
}

/// A row of the step-by-step loop, and of the rounds that lead to the same.
#[derive(Clone)]
struct Stream {
    /// What was fed, and stays.
    fed: Vec<i32>,
    pending: i32,
    last_prediction: i32,
    left: i32,
    failed: bool,
    committed: Vec<u32>,
    counters: RoundCounters,
    /// The seed of the next drafts, once there was a round that made one.
    seed: Option<f32>,
}

impl Stream {
    fn goes_on(&self) -> bool {
        self.left > 0 && (self.pending != NO_CODE || self.last_prediction != NO_CODE)
    }

    /// The code that is drawn next, which becomes pending.
    fn step(&mut self, toy: &Toy) -> bool {
        let drawn = if self.pending == NO_CODE {
            self.last_prediction
        } else {
            self.fed.push(self.pending);
            toy.draw(&self.fed)
        };
        self.pending = if toy.is_code(drawn) { drawn } else { NO_CODE };
        self.last_prediction = self.pending;
        self.failed = !toy.is_code(drawn);
        if !self.failed {
            self.committed.push(drawn.cast_unsigned());
            self.left -= i32::from(self.left != NO_LIMIT);
        }
        !self.failed
    }

    /// A round of `k` drafts with these of them used: as many steps as the tree accepts, and one more.
    fn round(&mut self, toy: &Toy, used: &[i32]) {
        let mut ahead = self.clone();
        let mut drawn = Vec::new();
        for _ in 0..=used.len() {
            // A chain's row draws what the loop would draw there, if the drafts before it are right; else it is not
            // looked at.
            if ahead.failed || !ahead.step(toy) {
                break;
            }
            drawn.push(ahead.pending);
        }
        drawn.resize(used.len() + 1, NO_CODE);
        let accepted = if used.len() < MOST_VERIFY_ROWS {
            let drafts: Vec<i32> = [NO_CODE].iter().chain(used).copied().collect();
            DraftTree::chain(used.len()).accept(&drafts, &drawn).count() - 1
        } else {
            used.iter().zip(&drawn).take_while(|(draft, drawn)| draft == drawn).count()
        };
        let (before, fed) = (self.committed.len(), self.fed.len());
        for _ in 0..=accepted {
            self.step(toy);
        }
        if self.fed.len() > fed {
            self.seed = Some(toy.hidden(&self.fed));
        }
        self.counters += RoundCounters {
            frames: 0,
            rounds: 1,
            codes: (self.committed.len() - before) as u64,
            drafted: used.len() as u64,
            accepted: accepted as u64,
        };
    }
}

/// Rows that begin in all kinds of ways.
fn begin(random: &mut Random, toy: &Toy, batch: usize) -> Vec<Stream> {
    let row = |_| {
        let fed: Vec<i32> = (0..random.below(20)).map(|_| random.below(toy.code_count) as i32).collect();
        let prediction = Some(toy.draw(&fed)).filter(|&code| toy.is_code(code)).unwrap_or(NO_CODE);
        let other = random.below(toy.code_count) as i32;
        let (pending, last_prediction) = match random.below(8) {
            0 => (NO_CODE, NO_CODE),
            1 | 2 => (NO_CODE, prediction),
            3 => (other, NO_CODE),
            _ => (prediction, other),
        };
        let left = match random.below(4) {
            0 => NO_LIMIT,
            1 => random.below(4) as i32,
            _ => random.below(60) as i32,
        };
        let (committed, counters) = (Vec::new(), RoundCounters::default());
        Stream { fed, pending, last_prediction, left, failed: false, committed, counters, seed: None }
    };
    (0..batch).map(row).collect()
}

/// One engine and its stream.
struct Run {
    toy: Toy,
    buffers: Buffers,
    engine: Engine,
    streams: Vec<Stream>,
    /// What each row fed, with what lies beyond its length.
    cache: Vec<Vec<i32>>,
    random: Random,
    p_min: Option<f32>,
    /// One draft in so many is wrong, or no code now and then; `None`: all are right, and probable.
    wrong: Option<usize>,
}

impl Run {
    /// Everything drawn from a seed.
    fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let fails = (random.below(3) == 0).then_some(23);
        let toy = Toy { seed: random.word(), code_count: 2 + random.below(2000), fails };
        let k = if random.below(8) == 0 { 8 + random.below(24) } else { 1 + random.below(7) };
        let shape = StreamShape::new(1 + random.below(6), k, 1 + random.below(6), toy.code_count).unwrap();
        let p_min = (random.below(2) == 0).then_some(0.25);
        let streams = begin(&mut random, &toy, shape.batch());
        let wrong = Some(random.one_of(&[1, 2, 4, 1000]));
        Self::new(shape, toy, streams, random, p_min, wrong)
    }

    fn new(
        shape: StreamShape,
        toy: Toy,
        streams: Vec<Stream>,
        random: Random,
        p_min: Option<f32>,
        wrong: Option<usize>,
    ) -> Self {
        let mut inputs = Inputs::none(&shape);
        inputs.probabilities = p_min.map(|p_min| (vec![f32::NAN; inputs.drafts.len()], p_min));
        let mut buffers = Buffers::new(shape);
        let mut engine = Engine::new(&buffers, &inputs, LAYERS);
        let code = |code: i32| u32::try_from(code).ok();
        for (row, stream) in streams.iter().enumerate() {
            let start = RowStart {
                position: stream.fed.len(),
                pending: code(stream.pending),
                last_prediction: code(stream.last_prediction),
                codes_left: (stream.left != NO_LIMIT).then_some(stream.left as usize),
            };
            buffers.start(row, &start);
        }
        let lengths: Vec<i32> = streams.iter().map(|stream| stream.fed.len() as i32).collect();
        engine.lengths.iter_mut().for_each(|layer| put(layer, &lengths));
        let cache = streams.iter().map(|stream| stream.fed.clone()).collect();
        Self { toy, buffers, engine, streams, cache, random, p_min, wrong }
    }

    /// Fills the drafts, mostly right, and moves the streams of the reference on.
    fn draft(&mut self) {
        let shape = *self.buffers.layout.shape();
        let (mut drafts, mut probabilities) = (Vec::new(), Vec::new());
        let seeds = self.engine.seeds.read::<f32>(shape.batch());
        for (row, stream) in self.streams.iter_mut().enumerate() {
            if let Some(seed) = stream.seed {
                assert_eq!(seeds[row], seed, "row {row}");
            }
            let mut ahead = stream.clone();
            let (first, mut cut) = (drafts.len(), false);
            for _ in 0..shape.drafts() {
                let right = !ahead.failed && ahead.step(&self.toy);
                let code = if right { ahead.pending } else { 0 };
                let Some(wrong) = self.wrong else {
                    drafts.push(code);
                    probabilities.push(1.0);
                    continue;
                };
                let other = self.random.below(self.toy.code_count) as i32;
                let no_code = self.random.one_of(&[NO_CODE, self.toy.code_count as i32, i32::MIN]);
                drafts.push(match self.random.below(30) {
                    0 => no_code,
                    _ if self.random.below(wrong) == 0 => other,
                    _ => code,
                });
                probabilities.push(self.random.one_of(&[0.25, 0.3, 1.0, 1.0, 1.0, 0.2, f32::NAN]));
            }
            if !stream.goes_on() {
                continue;
            }
            let most = shape.drafts().min(stream.left as usize - 1);
            let used = (first..first + most).take_while(|&place| {
                cut |= !self.toy.is_code(drafts[place]);
                cut |= self
                    .p_min
                    .is_some_and(|p_min| probabilities[place].is_nan() || probabilities[place] < p_min);
                !cut
            });
            let used: Vec<i32> = used.map(|place| drafts[place]).collect();
            stream.round(&self.toy, &used);
        }
        put(&mut self.engine.drafts, &drafts);
        if self.p_min.is_some() {
            put(&mut self.engine.probabilities, &probabilities);
        }
    }

    /// Feeds the entries behind what the lengths say is there, draws, and adds all entries to the lengths, used or not.
    fn verify(&mut self) {
        let shape = *self.buffers.layout.shape();
        let (entries, batch) = (shape.verify_rows(), shape.batch());
        let mut lengths: Vec<Vec<i32>> =
            self.engine.lengths.iter().map(|layer| layer.read::<i32>(batch)).collect();
        assert_eq!(lengths[0], lengths[1]);
        let (mut drawn, mut hidden) = (vec![i32::MIN; batch * entries], vec![f32::NAN; batch * entries]);
        for row in 0..batch {
            let state = self.buffers.row(row);
            assert_eq!(state.round_start, lengths[0][row], "row {row}");
            self.cache[row].truncate(state.round_start as usize);
            for (entry, &code) in state.verify_codes.iter().enumerate().filter(|(_, code)| **code != NO_CODE)
            {
                self.cache[row].push(code);
                drawn[row * entries + entry] = self.toy.draw(&self.cache[row]);
                hidden[row * entries + entry] = self.toy.hidden(&self.cache[row]);
            }
            lengths.iter_mut().for_each(|layer| layer[row] += entries as i32);
        }
        self.engine.lengths.iter_mut().zip(&lengths).for_each(|(layer, lengths)| put(layer, lengths));
        put(&mut self.engine.drawn, &drawn);
        put(&mut self.engine.hidden, &hidden);
    }

    fn burst(&mut self, schedule: Schedule) -> Result<(), LaunchError> {
        let plan = self.engine.plan;
        let engine = |_: &mut Host, phase| {
            match phase {
                Phase::Draft => self.draft(),
                Phase::Verify => self.verify(),
            }
            Ok(())
        };
        // SAFETY: the plan's addresses are of this run's memory.
        unsafe { plan.burst(&mut Host { schedule }, engine) }
    }

    /// The one read, against the reference.
    fn check(&mut self) {
        let drained = self.buffers.drain().unwrap();
        let positions: Vec<i32> = self.streams.iter().map(|stream| stream.fed.len() as i32).collect();
        for (row, (found, stream)) in drained.iter().zip(&mut self.streams).enumerate() {
            assert_eq!(found.codes, std::mem::take(&mut stream.committed), "row {row}");
            assert_eq!(found.counters, std::mem::take(&mut stream.counters), "row {row}");
            assert_eq!(found.failed, stream.failed, "row {row}");
            stream.failed = false;
            let left = (stream.left != NO_LIMIT).then_some(stream.left as usize);
            assert_eq!(found.codes_left, left, "row {row}");
            assert_eq!(self.buffers.row(row).position, positions[row], "row {row}");
        }
        for layer in &self.engine.lengths {
            assert_eq!(layer.read::<i32>(positions.len()), positions);
        }
        self.buffers.check_padding();
    }
}

#[test]
fn bursts_commit_what_the_step_by_step_loop_draws() {
    let mut seen = [0; 4];
    for seed in 0..60 {
        let mut run = Run::random(seed);
        for burst in 0..3 {
            run.burst(if burst == 0 { Schedule::Natural } else { Schedule::Seeded(seed + burst) }).unwrap();
            for Stream { counters, failed, .. } in &run.streams {
                let refused = counters.drafted - counters.accepted;
                let more = [counters.rounds, counters.accepted, refused, u64::from(*failed)];
                seen.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            }
            run.check();
        }
    }
    assert!(seen.iter().all(|count| *count > 10), "rounds, accepted, refused, failed: {seen:?}");
}

/// Rows without an end whose drafts are all right.
fn all_right(k: usize, rounds: usize) -> Run {
    let toy = Toy { seed: 5, code_count: 300, fails: None };
    let shape = StreamShape::new(2, k, rounds, toy.code_count).unwrap();
    let stream = Stream {
        fed: vec![4, 2],
        pending: 1,
        last_prediction: NO_CODE,
        left: NO_LIMIT,
        failed: false,
        committed: Vec::new(),
        counters: RoundCounters::default(),
        seed: None,
    };
    Run::new(shape, toy, vec![stream; 2], Random::new(1), None, None)
}

#[test]
fn a_burst_whose_drafts_are_all_right_fills_the_ring_exactly() {
    for k in [1, 2, 7, 31] {
        for rounds in [1, 5] {
            let mut run = all_right(k, rounds);
            for _ in 0..2 {
                run.burst(Schedule::Natural).unwrap();
                assert!(run.streams.iter().all(|stream| stream.committed.len() == rounds * (k + 1)));
                run.check();
            }
        }
    }
}

#[test]
fn a_burst_that_was_not_read_before_the_next_one_is_an_error_and_no_row_goes_wrong() {
    let mut run = all_right(3, 2);
    run.burst(Schedule::Natural).unwrap();
    run.burst(Schedule::Natural).unwrap();
    assert_eq!(run.buffers.drain(), Err(StreamError::RingOverflow { row: 0, found: 8, capacity: 8 }));
    // What was committed is lost, but the rows go on from where they are.
    for stream in &mut run.streams {
        stream.committed.clear();
        stream.counters = RoundCounters::default();
    }
    run.burst(Schedule::Natural).unwrap();
    run.check();
}
