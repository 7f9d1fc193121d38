//! Draws: the golden ones, and those of overtone-core over everything that a row may hold or ask for.

use overtone_core::checkpoint::tensor_file;
use overtone_core::sampling::{Sampler, SamplingParams};
use overtone_core::tensor::FloatType;
use overtone_cuda::arguments::ElementType;
use overtone_cuda::frame::{FrameCounters, TensorReference};
use overtone_simt::Schedule;

use crate::drawing::{Draw, Drawing, HIDDEN, WIDTH, draw, entry, projected_entry};
use crate::host::Memory;
use crate::host::fixtures::golden::test_data;
use crate::host::fixtures::random::Random;
use crate::row_state::{RowState, tensor};

/// Lengths of rows: a few entries, about the block's width, a codebook, and more.
const LENGTHS: [usize; 13] = [1, 2, 3, 97, 255, 256, 257, 1000, 2047, 2048, 2049, 3000, 4099];

#[test]
fn golden_rows_draw_their_codes() {
    let file = tensor_file::read(&test_data().join("sampling.safetensors")).unwrap();
    let floats = |name: &str| file[name].to_f32().unwrap();
    let integers = |name: &str| file[name].to_i64().unwrap();
    // Seeds and frames use all 64 bits.
    let words = |name: &str| -> Vec<u64> {
        file[name].bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    let (temperature, top_p, top_k) = (floats("temperature"), floats("top_p"), integers("top_k"));
    let (seed, frame, codebook, code) =
        (words("seed"), words("frame"), integers("codebook"), integers("code"));
    assert_eq!(code.len(), 200);
    for case in 0..code.len() {
        let params = SamplingParams::from_numbers(
            f64::from(temperature[case]),
            top_k[case],
            f64::from(top_p[case]),
            seed[case],
        )
        .unwrap();
        let row = Draw { logits: floats(&format!("logits.{case:03}")), params, frame_index: frame[case] };
        let drawn = draw(&[row], codebook[case] as usize, Schedule::Natural);
        assert_eq!(drawn, [Some(code[case] as u32)], "case {case}: {params:?}");
    }
}

/// Logits of many shapes.
fn random_logits(random: &mut Random, entries: usize) -> Vec<f32> {
    let scale = random.one_of(&[0.1, 1.0, 4.0, 30.0, 1e5]);
    let mut logits = random.normals(entries, scale);
    match random.below(8) {
        // Ties: a few levels, or one.
        0 => logits.iter_mut().for_each(|logit| *logit = (*logit / scale).round()),
        1 => logits.fill(random.one_of(&[0.0, -0.0, 5.5, -1e9])),
        // Levels that no noise connects, and both zeros.
        2 => logits.iter_mut().for_each(|logit| *logit = 1e9 + 64.0 * logit.signum()),
        3 => logits.iter_mut().for_each(|logit| *logit = 0.0_f32.copysign(*logit)),
        // Entries that are never drawn: some, or all but a few.
        4 => logits.iter_mut().filter(|_| random.below(3) == 0).for_each(|logit| *logit = f32::NEG_INFINITY),
        5 => logits.iter_mut().filter(|_| random.below(64) != 0).for_each(|logit| *logit = f32::NEG_INFINITY),
        _ => {}
    }
    // Rows that fail, or nearly.
    match random.below(24) {
        0 => logits[random.below(entries)] = f32::NAN,
        1 => logits[random.below(entries)] = f32::INFINITY,
        2 => logits.fill(f32::NEG_INFINITY),
        3 => logits[random.below(entries)] = random.one_of(&[f32::MAX, f32::MIN, 3e38]),
        _ => {}
    }
    logits
}

/// Parameters within their ranges, the ends of them included.
fn random_params(random: &mut Random, entries: usize) -> SamplingParams {
    let temperature = random.one_of(&[0.0, 1e-45, 1e-3, 0.5, 0.9, 1.0, 1.0, 1.7, 100.0, 3e38]);
    let near = [1, entries.saturating_sub(1).max(1), entries, entries + 1].map(|top_k| top_k as u32);
    let top_k = random.one_of(&[
        0,
        0,
        1,
        2,
        5,
        20,
        50,
        56,
        57,
        200,
        255,
        256,
        257,
        700,
        u32::MAX,
        near[1],
        near[2],
        near[3],
    ]);
    let top_p =
        random.one_of(&[1.0, 1.0, 1.0, 0.8, 0.5, 0.95, 0.25, 1e-3, 1e-45, f32::MIN_POSITIVE, 1.0 - 6e-8]);
    let seed = random.one_of(&[0, 7, u64::MAX, 1 << 32]) ^ random.word() >> random.one_of(&[0, 20, 60]);
    SamplingParams::new(temperature, top_k, top_p, seed).unwrap()
}

fn expected(row: &Draw, codebook: usize) -> Option<u32> {
    Sampler::new(row.logits.len()).draw(&row.logits, &row.params, row.frame_index, codebook as u32).ok()
}

fn check_random_rows(seed: u64, rounds: usize) {
    const ROWS: usize = 12;
    let mut random = Random::new(seed);
    let (mut failed, mut drawn_rows) = (0, 0);
    for round in 0..rounds {
        let entries = LENGTHS[round % LENGTHS.len()];
        let codebook = 1 + random.below(31);
        let row = |random: &mut Random| Draw {
            logits: random_logits(random, entries),
            params: random_params(random, entries),
            frame_index: random.word() >> random.one_of(&[0, 40]),
        };
        let rows: Vec<Draw> = (0..ROWS).map(|_| row(&mut random)).collect();
        let schedule = if round % 5 == 4 { Schedule::Seeded(round as u64) } else { Schedule::Natural };
        for (row, drawn) in rows.iter().zip(draw(&rows, codebook, schedule)) {
            let place = || format!("round {round}: {entries} logits, {:?}, {schedule:?}", row.params);
            assert_eq!(drawn, expected(row, codebook), "{}", place());
            failed += usize::from(drawn.is_none());
            drawn_rows += usize::from(drawn.is_some());
        }
    }
    assert!(
        failed * 20 > drawn_rows && drawn_rows > failed,
        "{failed} of {} rows failed",
        failed + drawn_rows
    );
}

#[test]
fn codes_and_failures_are_overtone_cores_over_rows_and_parameters_of_all_kinds() {
    check_random_rows(1, 4 * LENGTHS.len());
}

#[test]
fn codes_and_failures_are_overtone_cores_over_more_rows() {
    check_random_rows(2, 4 * LENGTHS.len());
}

/// Every top_k of interest with and without top_p, on rows without and with many ties: the short way, its overflow, and
/// the general way.
#[test]
fn both_ways_to_the_kept_set_draw_the_same_code() {
    let mut random = Random::new(3);
    for entries in [300, 2048, 2500] {
        for top_k in [0, 1, 50, 56, 57, 255, 256, 257, 1000] {
            let rows: Vec<Draw> = [(1.0, 0.0), (0.8, 0.0), (0.3, 1.0), (1.0, 1.0), (0.9, 4.0)]
                .into_iter()
                .map(|(top_p, levels)| {
                    let mut logits = random.normals(entries, 2.0);
                    if levels > 0.0 {
                        logits.iter_mut().for_each(|logit| *logit = (*logit / levels).round() * levels);
                    }
                    let params = SamplingParams::new(1.0, top_k, top_p, random.word()).unwrap();
                    Draw { logits, params, frame_index: 5 }
                })
                .collect();
            let drawn = draw(&rows, 4, Schedule::Natural);
            let expected: Vec<_> = rows.iter().map(|row| expected(row, 4)).collect();
            assert_eq!(drawn, expected, "{entries} logits, top_k {top_k}");
        }
    }
}

#[test]
fn an_entry_with_exactly_top_p_before_it_is_out_both_ways() {
    // Eight equal entries, and one without mass that keeps top_k 8 from being off.
    let logits: Vec<f32> = (0..9).map(|index| if index == 4 { -1e4 } else { 1.0 }).collect();
    let first = |count: usize| (0..9).filter(|index| *index != 4).take(count).collect::<Vec<u32>>();
    for top_k in [0, 8] {
        for kept in [1_u8, 2, 4, 7] {
            let row = |seed| {
                let params = SamplingParams::new(1.0, top_k, f32::from(kept) / 8.0, seed).unwrap();
                Draw { logits: logits.clone(), params, frame_index: 0 }
            };
            let rows: Vec<Draw> = (0..64).map(row).collect();
            let mut drawn: Vec<u32> = draw(&rows, 1, Schedule::Natural).into_iter().flatten().collect();
            let expected: Vec<u32> = rows.iter().filter_map(|row| expected(row, 1)).collect();
            assert_eq!(drawn, expected, "top_k {top_k}, {kept} of 8");
            drawn.sort_unstable();
            drawn.dedup();
            assert_eq!(drawn, first(kept.into()), "top_k {top_k}: each of those kept is drawn, and no other");
        }
    }
}

#[test]
fn a_seed_a_frame_and_a_codebook_each_draw_anew() {
    let logits = vec![0.0; 2048];
    let params = |seed| SamplingParams::new(1.0, 50, 1.0, seed).unwrap();
    let mut drawn = Vec::new();
    for (seed, frame_index, codebook) in
        [(1, 1, 1), (2, 1, 1), (1 << 32, 1, 1), (1, 2, 1), (1, 1 << 32, 1), (1, 1, 2)]
    {
        let row = Draw { logits: logits.clone(), params: params(seed), frame_index };
        let code = draw(std::slice::from_ref(&row), codebook, Schedule::Natural)[0];
        assert_eq!(code, expected(&row, codebook));
        drawn.push(code);
    }
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn.len(), 6);
}

/// Rows of 60 logits whose greedy code is `code`.
fn rows_with_codes(codes: &[usize]) -> Vec<Vec<f32>> {
    codes.iter().map(|code| (0..60).map(|index| if index == *code { 1.0 } else { 0.0 }).collect()).collect()
}

const ACTIVE: RowState = RowState {
    temperature: 0.0,
    top_k: 0,
    top_p: 1.0,
    status: 0,
    seed: 0,
    frame_index: 0,
    codes: 0,
    active: 1,
    parameters_out_of_range: 0,
};

#[test]
fn a_code_hands_out_its_row_adds_it_and_starts_the_next_step() {
    for projected in [false, true] {
        let mut drawing = Drawing::new(&rows_with_codes(&[17, 3]), &[ACTIVE; 2], 2, 3);
        drawing.projected = projected;
        drawing.go(2, Schedule::Natural);
        assert_eq!(drawing.drawn(), [17, 3]);
        let codec_sum = drawing.codec_sum.read::<f32>(2 * WIDTH);
        let hiddens = drawing.codec_hiddens.read::<f32>(2 * 4 * WIDTH);
        let hidden = if projected { HIDDEN } else { WIDTH };
        let residual = drawing.residual.read::<f32>(2 * hidden);
        for (row, code) in [17, 3].into_iter().enumerate() {
            let raw: Vec<f32> = (0..WIDTH).map(|index| entry(code, index)).collect();
            let sum: Vec<f32> = raw.iter().map(|value| 1000.0 + value).collect();
            assert_eq!(codec_sum[row * WIDTH..][..WIDTH], sum);
            for codebook in 0..4 {
                let found = &hiddens[(row * 4 + codebook) * WIDTH..][..WIDTH];
                if codebook == 2 {
                    assert_eq!(found, raw);
                } else {
                    assert!(found.iter().all(|value| value.is_nan()), "row {codebook} is another codebook's");
                }
            }
            let next: Vec<f32> =
                if projected { (0..HIDDEN).map(|index| projected_entry(code, index)).collect() } else { raw };
            assert_eq!(residual[row * hidden..][..hidden], next);
        }
        let logits = drawing.logits_out.read::<f32>(2 * 3 * 60);
        let written: Vec<usize> = (0..6).filter(|part| !logits[part * 60].is_nan()).collect();
        assert_eq!(written, [1, 4], "the logits of codebook 2 of both rows");
        assert_eq!(logits[60..120], rows_with_codes(&[17])[0]);
        let counted = drawing.counters.read::<FrameCounters>(1)[0];
        assert_eq!(counted, FrameCounters::default());
        assert_eq!(drawing.status.read::<i32>(2), [0x7f7f_7f7f; 2], "the frame has not ended");
        assert!(drawing.codec_sum_out.read::<f32>(2 * WIDTH).iter().all(|sum| sum.is_nan()));
    }
}

#[test]
fn the_last_code_ends_the_frame_and_is_not_handed_out() {
    for out_type in [FloatType::Float32, FloatType::BFloat16, FloatType::Float16] {
        let states = [ACTIVE, RowState { status: 1, ..ACTIVE }, RowState { active: 0, ..ACTIVE }];
        let mut drawing = Drawing::new(&rows_with_codes(&[17, 3, 5]), &states, 3, 3);
        let out = Memory::filled((3 * WIDTH * 2 * 4) as u64, 0xff);
        // Every second element of a wider tensor.
        drawing.header.codec_sum = tensor(&out, out_type.into(), &[2 * WIDTH as i64, 2], 3);
        drawing.go(5, Schedule::Natural);
        assert_eq!(drawing.drawn(), [17, 3, 0x7f7f_7f7f]);
        let sums = out.read_floats(out_type, 3 * WIDTH * 2);
        for (place, sum) in sums.iter().enumerate() {
            let (row, index) = (place / (2 * WIDTH), place % (2 * WIDTH));
            if row == 2 || index % 2 == 1 {
                assert!(sum.is_nan(), "element {place} is nobody's");
            } else {
                let expected = 1000.0 + entry([17, 3][row], index / 2);
                assert_eq!(*sum, crate::host::rounded(out_type, expected));
            }
        }
        assert!(drawing.codec_hiddens.read::<f32>(3 * 4 * WIDTH).iter().all(|value| value.is_nan()));
        assert!(drawing.residual.read::<f32>(3 * WIDTH).iter().all(|value| value.is_nan()));
        assert_eq!(drawing.status.read::<i32>(3), [0, 1, 0]);
        let counted = FrameCounters { frames: 1, rows: 2, failed_rows: 1, launches: 1 };
        assert_eq!(drawing.counters.read::<FrameCounters>(1)[0], counted);
    }
}

#[test]
fn the_first_failure_is_the_one_recorded() {
    for (before, expected) in [(0, 2), (1, 1), (-1, -1)] {
        let states = [RowState { status: before, ..ACTIVE }];
        let drawing = Drawing::new(&[vec![f32::NAN; 60]], &states, 2, 3);
        drawing.go(1, Schedule::Natural);
        assert_eq!((drawing.states()[0].status, drawing.drawn()), (expected, vec![0]));
    }
    let states = [RowState { parameters_out_of_range: 1, ..ACTIVE }];
    let drawing = Drawing::new(&rows_with_codes(&[17]), &states, 2, 3);
    drawing.go(1, Schedule::Natural);
    assert_eq!((drawing.states()[0].status, drawing.drawn()), (2, vec![0]));
}

#[test]
fn a_frame_advances_its_index_and_its_ring_once() {
    // One index for all rows.
    let (index, slot) = (Memory::of(&[41_i64]), Memory::of(&[6_i64]));
    let states = [RowState { active: 0, ..ACTIVE }, ACTIVE];
    let logits = rows_with_codes(&[1, 2]);
    let mut drawing = Drawing::new(&logits, &states, 3, 3);
    drawing.header.frame_index = tensor(&index, ElementType::Int64, &[0], 1);
    drawing.header.ring_slot = tensor(&slot, ElementType::Int64, &[0], 1);
    drawing.header.advance_frame_index = 1;
    drawing.go(4, Schedule::Seeded(3));
    assert_eq!((index.read::<i64>(1), slot.read::<i64>(1)), (vec![42], vec![7]));

    // One for each: those of rows that take part.
    let indices = Memory::of(&[41_i64, 1 << 40]);
    drawing.header.frame_index = tensor(&indices, ElementType::Int64, &[1], 2);
    drawing.go(2, Schedule::Natural);
    assert_eq!(indices.read::<i64>(2), [41, (1 << 40) + 1]);
    drawing.header.advance_frame_index = 0;
    drawing.go(2, Schedule::Natural);
    // The host's index, which the launches counted.
    drawing.header.frame_index = TensorReference::default();
    drawing.header.advance_frame_index = 1;
    drawing.go(2, Schedule::Natural);
    assert_eq!(drawing.counters.read::<FrameCounters>(1)[0].launches, 4);
    assert_eq!(indices.read::<i64>(2), [41, (1 << 40) + 1]);
}

#[test]
fn sixteen_bit_tables_are_handed_out_as_they_are_stored() {
    for table_type in [FloatType::Float16, FloatType::BFloat16] {
        let mut drawing = Drawing::new(&rows_with_codes(&[9]), &[ACTIVE], 1, 3);
        let values: Vec<f32> = (0..60 * WIDTH).map(|place| entry(place / WIDTH, place % WIDTH)).collect();
        drawing.table = Memory::of_floats(table_type, &values);
        drawing.table_type = table_type;
        let hiddens = Memory::filled((4 * WIDTH * 2) as u64, 0xff);
        let strides = [(4 * WIDTH) as i64, WIDTH as i64, 1];
        drawing.header.codec_hiddens = tensor(&hiddens, table_type.into(), &strides, 1);
        drawing.go(1, Schedule::Natural);
        let (found, stored) = (hiddens.read::<u16>(4 * WIDTH), drawing.table.read::<u16>(60 * WIDTH));
        assert_eq!(found[WIDTH..2 * WIDTH], stored[9 * WIDTH..10 * WIDTH]);
    }
}
