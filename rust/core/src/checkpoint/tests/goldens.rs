//! The golden checkpoints load as they are: architecture, types and values. The expected values were read from the
//! files by an independent program.

use super::*;

type Name = WeightName;

fn assert_values(checkpoint: &Checkpoint<'_>, expected: &[(Name, usize, f32)]) {
    for &(name, index, value) in expected {
        let shape = checkpoint.spec().weight_shape(name);
        let found = checkpoint.read(name, |tensor| {
            assert_eq!(tensor.shape, shape, "{name}");
            assert_eq!(tensor.bytes.len(), shape.iter().product::<usize>() * tensor.float_type.size());
            tensor.get(index)
        });
        assert_eq!(found.unwrap(), value, "{name}[{index}]");
    }
}

#[test]
fn the_whole_omni_model_loads_from_one_file() {
    let checkpoint = Checkpoint::open(&golden("omni-tiny")).unwrap();
    let spec = ModelSpec {
        family: Family::Qwen3Omni,
        residual_codebooks: 7,
        codebook_size: 96,
        code_zero_size: Some(128),
        hidden_size: 64,
        talker_hidden_size: 64,
        layers: 2,
        query_heads: 4,
        key_value_heads: 2,
        head_size: 32,
        mlp_width: 160,
        rms_norm_epsilon: 1e-6,
        position_encoding: PositionEncoding::Rope { theta: 1e6 },
        projected: false,
    };
    assert_eq!(*checkpoint.spec(), spec);
    assert_eq!(checkpoint.float_type(Name::FinalNorm), Some(FloatType::Float32));
    assert_eq!(checkpoint.float_type(Name::ProjectionWeight), None);
    assert_values(
        &checkpoint,
        &[
            (Name::CodecEmbedding(0), 0, -0.553_106_7),
            (Name::CodecEmbedding(6), 6143, -0.969_312_7),
            (Name::Head(0), 1, -0.264_020_23),
            (Name::Head(6), 6143, -0.154_782_09),
            (Name::FinalNorm, 5, 1.204_163_1),
            (Name::InputNorm(0), 2, 0.673_437_65),
            (Name::PostAttentionNorm(0), 3, 0.827_372_3),
            (Name::Query(0), 70, -0.039_412_614),
            (Name::Key(0), 71, -0.025_442_48),
            (Name::Value(0), 72, 0.015_668_73),
            (Name::Output(0), 73, 0.165_059_69),
            (Name::QueryNorm(0), 4, 1.293_977),
            (Name::KeyNorm(0), 31, 1.340_397_1),
            (Name::Gate(0), 9, -0.045_688_92),
            (Name::Up(0), 10239, -0.019_116_307),
            (Name::Down(0), 10239, 0.075_120_21),
            (Name::CodeZeroTable, 200, f32::from_bits(0x3f80_ae65)),
        ],
    );
}

#[test]
fn the_projected_tts_model_loads_from_shards() {
    let checkpoint = Checkpoint::open(&golden("tts-tiny-projected")).unwrap();
    let spec = ModelSpec {
        family: Family::Qwen3Tts,
        residual_codebooks: 7,
        codebook_size: 80,
        code_zero_size: Some(112),
        hidden_size: 64,
        talker_hidden_size: 96,
        layers: 3,
        query_heads: 4,
        key_value_heads: 4,
        head_size: 24,
        mlp_width: 160,
        rms_norm_epsilon: 1e-6,
        position_encoding: PositionEncoding::Rope { theta: 1e6 },
        projected: true,
    };
    assert_eq!(*checkpoint.spec(), spec);
    assert_eq!(checkpoint.float_type(Name::Down(2)), Some(FloatType::BFloat16));
    assert_eq!(checkpoint.sources().len(), 4);
    assert_values(
        &checkpoint,
        &[
            (Name::CodecEmbedding(0), 0, 0.4375),
            (Name::CodecEmbedding(6), 7679, 0.494_140_63),
            (Name::Head(0), 1, 0.249_023_44),
            (Name::Head(6), 5119, -0.273_437_5),
            (Name::FinalNorm, 5, 1.140_625),
            (Name::InputNorm(0), 2, 0.75),
            (Name::PostAttentionNorm(0), 3, 1.226_562_5),
            (Name::Query(0), 70, 0.010_437_012),
            (Name::Key(0), 71, -0.186_523_44),
            (Name::Value(0), 72, 0.027_221_68),
            (Name::Output(0), 73, -0.098_144_53),
            (Name::QueryNorm(0), 4, 1.078_125),
            (Name::KeyNorm(0), 23, 1.4375),
            (Name::Gate(0), 9, 0.094_238_28),
            (Name::Up(0), 10239, -0.269_531_25),
            (Name::Down(0), 10239, -0.025_756_836),
            (Name::ProjectionWeight, 6143, -0.049_560_547),
            (Name::ProjectionBias, 7, 0.408_203_13),
            (Name::CodeZeroTable, 200, f32::from_bits(0xbd95_0000)),
        ],
    );
}

#[test]
fn the_lone_predictor_loads_and_takes_its_table_from_a_file() {
    let checkpoint = Checkpoint::open(&golden("standalone")).unwrap();
    let spec = ModelSpec {
        family: Family::Qwen3Omni,
        residual_codebooks: 15,
        codebook_size: 2048,
        code_zero_size: None,
        hidden_size: 64,
        talker_hidden_size: 64,
        layers: 1,
        query_heads: 8,
        key_value_heads: 2,
        head_size: 16,
        mlp_width: 192,
        rms_norm_epsilon: 1e-6,
        position_encoding: PositionEncoding::Rope { theta: 1e4 },
        projected: false,
    };
    assert_eq!(*checkpoint.spec(), spec);
    assert!(!checkpoint.has(Name::CodeZeroTable));

    let table = golden("standalone").join("code_zero_table.safetensors");
    let checkpoint = checkpoint.with_code_zero_table(&table).unwrap();
    assert_eq!(checkpoint.spec().code_zero_size, Some(2304));
    assert_eq!(checkpoint.float_type(Name::CodeZeroTable), Some(FloatType::Float16));
    assert!(checkpoint.sources().contains(&table));
    assert_values(
        &checkpoint,
        &[
            (Name::CodecEmbedding(0), 0, 0.772_460_94),
            (Name::CodecEmbedding(6), 131_071, -0.685_058_6),
            (Name::Head(0), 1, -0.310_546_88),
            (Name::Head(6), 131_071, 0.129_882_81),
            (Name::FinalNorm, 5, 1.315_429_7),
            (Name::InputNorm(0), 2, 1.019_531_3),
            (Name::PostAttentionNorm(0), 3, 0.971_191_4),
            (Name::Query(0), 70, 0.126_220_7),
            (Name::Key(0), 71, -0.099_548_34),
            (Name::Value(0), 72, 0.106_567_38),
            (Name::Output(0), 73, -0.010_566_711),
            (Name::QueryNorm(0), 4, 1.230_468_8),
            (Name::KeyNorm(0), 15, 1.546_875),
            (Name::Gate(0), 9, -0.097_900_39),
            (Name::Up(0), 12287, 0.007_377_624_5),
            (Name::Down(0), 12287, 0.036_285_4),
            (Name::CodeZeroTable, 200, -0.288_085_94),
        ],
    );
}

#[test]
fn every_tensor_of_a_golden_is_read_bit_for_bit() {
    for (name, prefix) in [
        ("omni-tiny", "talker.code_predictor."),
        ("tts-tiny-projected", "talker.code_predictor."),
        ("standalone", ""),
    ] {
        let mut stored = Tensors::new();
        for entry in fs::read_dir(golden(name)).unwrap() {
            let path = entry.unwrap().path();
            let file = path.file_name().unwrap().to_str().unwrap();
            if file.starts_with("model") && file.ends_with(".safetensors") {
                stored.extend(tensor_file::read(&path).unwrap());
            }
        }
        let checkpoint = Checkpoint::open(&golden(name)).unwrap();
        for (weight, bytes) in contents(&checkpoint) {
            let key = if weight == Name::CodeZeroTable {
                weight.to_string()
            } else {
                prefix.to_owned() + &key(weight)
            };
            assert_eq!(bytes.unwrap(), *stored[&key].bytes, "{name}: {key}");
        }
    }
}

#[test]
fn parameters_are_counted_as_the_architecture_says() {
    let spec = synthetic::Architecture::Qwen3Tts17B.spec();
    // Per layer q, k, v, o: 1024 · 128 · (16 + 8 + 8 + 16); MLP: 3 · 1024 · 3072; norms: 2 · 1024 + 2 · 128.
    let body = 5 * (1024 * 128 * 48 + 3 * 1024 * 3072 + 2 * 1024 + 2 * 128) + 1024;
    assert_eq!(spec.body_parameters(), body);
    let tables = 15 * 2048 * 2048;
    let heads = 15 * 2048 * 1024;
    assert_eq!(spec.parameters(), body + tables + heads + 1024 * 2048 + 1024);
}
