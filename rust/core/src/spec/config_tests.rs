//! What a configuration promises: what is read is what was meant, and everything else is refused by key.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn flat() -> Value {
    json!({
        "model_type": "qwen3_tts_talker_code_predictor",
        "num_code_groups": 16,
        "vocab_size": 2048,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 5,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "hidden_act": "silu",
    })
}

fn read(config: &Value) -> Result<ModelSpec, ConfigError> {
    Config::from_json(config.to_string().as_bytes(), Some(Path::new("dir/config.json")))?.complete()
}

fn refused(config: &Value) -> ConfigError {
    let error = read(config).expect_err(&format!("must be refused: {config}"));
    assert!(error.to_string().starts_with("dir/config.json: "), "{error}");
    assert_eq!(error.file(), Some(Path::new("dir/config.json")));
    error
}

fn with(changes: &[(&str, Value)]) -> Value {
    let mut config = flat();
    for (key, value) in changes {
        config[*key] = value.clone();
    }
    config
}

fn without(key: &str) -> Value {
    let mut config = flat();
    config.as_object_mut().unwrap().remove(key);
    config
}

#[test]
fn what_is_not_a_json_object_is_refused() {
    let error = Config::from_json(b"{", None).expect_err("not JSON");
    assert!(matches!(error.problem(), ConfigProblem::Json(_)), "{error}");
    assert!(error.to_string().starts_with("the configuration: not valid JSON: EOF"), "{error}");
    let error = refused(&json!([1]));
    assert!(matches!(error.problem(), ConfigProblem::RootNotAnObject { .. }), "{error}");
}

#[test]
fn every_key_but_theta_and_code_groups_is_needed() {
    let all = flat();
    for key in all.as_object().unwrap().keys() {
        // Null counts as missing.
        for config in [without(key), with(&[(key, Value::Null)])] {
            match key.as_str() {
                "rope_theta" => {
                    let theta = read(&config).unwrap().position_encoding;
                    assert_eq!(theta, PositionEncoding::Rope { theta: DEFAULT_ROPE_THETA });
                }
                "num_code_groups" => assert_eq!(read(&config).unwrap().residual_codebooks, 31),
                "model_type" => assert_eq!(read(&config).unwrap().family, Family::Qwen3Tts),
                key => {
                    let error = refused(&config);
                    assert!(matches!(error.problem(), ConfigProblem::Missing { .. }), "{error}");
                    assert_eq!(error.key(), Some(key));
                }
            }
        }
    }
}

#[test]
fn sizes_must_be_integers_in_range() {
    for size in &SIZES {
        for value in [json!("8"), json!(8.0), json!(true), json!([8]), json!({})] {
            let error = refused(&with(&[(size.key, value)]));
            assert!(matches!(error.problem(), ConfigProblem::WrongType { .. }), "{error}");
            assert_eq!((error.key(), error.expected().as_deref()), (Some(size.key), Some("an integer")));
        }
        let beyond = size.range.end() + 1;
        for value in [json!(0), json!(-1), json!(i64::MIN), json!(u64::MAX), json!(beyond)] {
            let error = refused(&with(&[(size.key, value.clone())]));
            assert!(matches!(error.problem(), ConfigProblem::OutOfRange { .. }), "{error}");
            assert_eq!((error.key(), error.found()), (Some(size.key), Some(value.to_string())));
        }
    }
    assert_eq!(refused(&with(&[("num_code_groups", json!(1))])).key(), Some("num_code_groups"));
}

#[test]
fn epsilon_and_theta_must_be_positive_numbers() {
    for key in ["rms_norm_eps", "rope_theta"] {
        for value in [json!(0), json!(-1e-6), json!(1e-60), json!(1e300)] {
            let error = refused(&with(&[(key, value)]));
            assert!(matches!(error.problem(), ConfigProblem::OutOfRange { .. }), "{error}");
        }
        let error = refused(&with(&[(key, json!("1e-6"))]));
        assert!(matches!(error.problem(), ConfigProblem::WrongType { .. }), "{error}");
    }
}

#[test]
fn what_would_be_computed_in_another_way_is_refused() {
    for (key, value, place) in [
        ("hidden_act", json!("gelu"), "hidden_act"),
        ("attention_bias", json!(true), "attention_bias"),
        ("rope_scaling", json!({ "rope_type": "yarn", "factor": 4.0 }), "rope_scaling.rope_type"),
        ("rope_scaling", json!({ "type": "linear", "factor": 2.0 }), "rope_scaling.type"),
        ("rope_parameters", json!({ "rope_type": "llama3" }), "rope_parameters.rope_type"),
        ("rope_parameters", json!({ "partial_rotary_factor": 0.5 }), "rope_parameters.partial_rotary_factor"),
        ("partial_rotary_factor", json!(0.25), "partial_rotary_factor"),
        ("layer_types", json!(["full_attention", "linear_attention"]), "layer_types"),
    ] {
        let error = refused(&with(&[(key, value)]));
        assert!(matches!(error.problem(), ConfigProblem::Unsupported { .. }), "{error}");
        assert_eq!(error.key(), Some(place));
    }
}

#[test]
fn settings_that_change_nothing_are_accepted() {
    for (key, value) in [
        ("attention_bias", json!(false)),
        ("rope_scaling", Value::Null),
        ("rope_scaling", json!({ "rope_type": "default", "type": "default" })),
        ("rope_parameters", json!({ "rope_type": "default", "rope_theta": 1e6 })),
        ("partial_rotary_factor", json!(1)),
        ("layer_types", json!(["full_attention", "full_attention"])),
        ("sliding_window", json!(4)),
        ("tie_word_embeddings", json!(false)),
        ("an_unknown_key", json!({ "hidden_size": 7 })),
    ] {
        assert_eq!(read(&with(&[(key, value)])).unwrap(), read(&flat()).unwrap(), "{key}");
    }
}

#[test]
fn a_window_must_hold_a_whole_frame() {
    for switch in [("use_sliding_window", json!(true)), ("layer_types", json!(["sliding_attention"]))] {
        let window = |size: Value| with(&[switch.clone(), ("sliding_window", size)]);
        assert!(read(&window(json!(16))).is_ok());
        assert!(read(&window(Value::Null)).is_ok());
        let error = refused(&window(json!(15)));
        assert!(matches!(error.problem(), ConfigProblem::WindowTooShort { window: 15, positions: 16, .. }));
    }
}

#[test]
fn theta_may_stand_in_either_place_but_with_one_value() {
    let mut config = without("rope_theta");
    config["rope_parameters"] = json!({ "rope_theta": 7e5 });
    assert_eq!(read(&config).unwrap().position_encoding, PositionEncoding::Rope { theta: 7e5 });
    config["rope_theta"] = 6e5.into();
    let error = refused(&config);
    assert!(matches!(error.problem(), ConfigProblem::TwoThetas { .. }), "{error}");
}

#[test]
fn heads_must_divide_and_halve() {
    let error = refused(&with(&[("num_key_value_heads", json!(3))]));
    assert!(matches!(error.problem(), ConfigProblem::HeadsNotDivisible { .. }), "{error}");
    let error = refused(&with(&[("head_dim", json!(65))]));
    assert!(matches!(error.problem(), ConfigProblem::OddHeadSize { .. }), "{error}");
}

#[test]
fn the_family_is_told_by_any_name_the_model_gives_itself() {
    let family = |changes: &[(&str, Value)]| {
        let mut config = without("model_type");
        for (key, value) in changes {
            config[*key] = value.clone();
        }
        read(&config).map(|spec| spec.family)
    };
    let omni = "Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration";
    let tts = "Qwen3TTSTalkerCodePredictorModelForConditionalGeneration";
    assert_eq!(family(&[("architectures", json!([omni]))]).unwrap(), Family::Qwen3Omni);
    assert_eq!(family(&[("architectures", json!([tts]))]).unwrap(), Family::Qwen3Tts);
    let exported = [("model_type", json!("llm")), ("model", json!("qwen3_omni_moe_talker_code_predictor"))];
    assert_eq!(family(&exported).unwrap(), Family::Qwen3Omni);
    let error = refused(&with(&[("model_type", json!("qwen3"))]));
    assert!(matches!(error.problem(), ConfigProblem::UnknownFamily { found } if found == "qwen3"), "{error}");
    let nested = json!({ "model_type": "qwen3_omni_moe", "talker_config": { "code_predictor_config": without("model_type") } });
    assert_eq!(read(&nested).unwrap().family, Family::Qwen3Omni);
}

#[test]
fn a_nested_key_is_named_with_the_way_to_it() {
    let mut predictor = flat();
    predictor["hidden_size"] = "wide".into();
    let nested = json!({ "talker_config": { "code_predictor_config": predictor } });
    assert_eq!(refused(&nested).key(), Some("talker_config.code_predictor_config.hidden_size"));
    predictor["hidden_size"] = Value::Null;
    let nested = json!({ "code_predictor_config": predictor });
    assert_eq!(refused(&nested).key(), Some("code_predictor_config.hidden_size"));
    let error = refused(&json!({ "talker_config": { "hidden_size": 8 } }));
    assert_eq!(error.key(), Some("talker_config.code_predictor_config"));
    assert_eq!(refused(&json!({ "talker_config": 3 })).key(), Some("talker_config"));
    let nested = json!({ "talker_config": { "hidden_size": 0, "code_predictor_config": flat() } });
    assert_eq!(refused(&nested).key(), Some("talker_config.hidden_size"));
}

#[test]
fn a_long_value_is_cut_in_a_message() {
    let error = refused(&with(&[("hidden_act", json!("s".repeat(1 << 20)))]));
    assert!(error.to_string().len() < 300);
}

#[test]
fn what_one_file_leaves_open_another_supplies() {
    let parse = |config: &Value| Config::from_json(config.to_string().as_bytes(), None).unwrap();
    let whole = parse(&flat());
    for key in flat().as_object().unwrap().keys() {
        let merged = parse(&without(key)).supplied_by(&whole).unwrap();
        assert_eq!(merged.complete().unwrap(), whole.complete().unwrap(), "{key}");
    }
    let other = parse(&with(&[("rms_norm_eps", json!(1e-5))]));
    let error = whole.supplied_by(&other).expect_err("must disagree");
    assert!(matches!(error.problem(), ConfigProblem::Disagrees { .. }), "{error}");
    assert_eq!(error.key(), Some("rms_norm_eps"));
}

fn any_spec() -> impl Strategy<Value = ModelSpec> {
    let family = prop::sample::select(vec![Family::Qwen3Tts, Family::Qwen3Omni]);
    let tables = (1_usize..1024, 1_usize..=1 << 22, 1_usize..=1 << 20);
    let widths = (1_usize..=1 << 20, 1_usize..=1 << 20, 1_usize..=1024);
    let heads = (1_usize..=32, 1_usize..=32, 1_usize..=2048);
    let numbers = (1e-12_f32..1.0, 1.0_f32..1e12);
    (family, tables, widths, heads, numbers).prop_map(|(family, tables, widths, heads, numbers)| ModelSpec {
        family,
        residual_codebooks: tables.0,
        codebook_size: tables.1,
        code_zero_size: None,
        hidden_size: widths.0,
        talker_hidden_size: tables.2,
        layers: widths.2,
        query_heads: heads.0 * heads.1,
        key_value_heads: heads.1,
        head_size: 2 * heads.2,
        mlp_width: widths.1,
        rms_norm_epsilon: numbers.0,
        position_encoding: PositionEncoding::Rope { theta: numbers.1 },
        projected: false,
    })
}

proptest! {
    #[test]
    fn a_written_configuration_reads_as_the_architecture_it_was_written_for(spec in any_spec()) {
        let config = crate::checkpoint::synthetic::config_json(&spec);
        prop_assert_eq!(read(&config).unwrap(), spec);
    }

    #[test]
    fn any_text_is_read_or_refused(text in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Config::from_json(&text, None);
    }

    #[test]
    fn sizes_that_are_accepted_never_overflow(spec in any_spec()) {
        let bytes = spec.weights().try_fold(0_u64, |sum, name| {
            let elements = spec.weight_shape(name).iter().try_fold(4_u64, |product, extent| product.checked_mul(*extent as u64));
            sum.checked_add(elements?)
        });
        prop_assert!(bytes.is_some_and(|bytes| bytes < 1 << 63));
    }
}
